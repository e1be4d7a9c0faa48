"""`results/run.py`, which trains every table of the folder `results`."""

import runpy
from pathlib import Path

from firstpage.compare.tables import find

RESULTS = Path(__file__).parents[2] / "results"


def test_every_job_has_a_table_and_a_folder_of_its_own():
    jobs = runpy.run_path(str(RESULTS / "run.py"))["JOBS"]
    assert len({job.folder for job in jobs}) == len(jobs)
    for job in jobs:
        table = find(job.table or str(RESULTS / job.folder / "table.toml"))
        assert table.rows[0].name == "Untrained", job.folder
