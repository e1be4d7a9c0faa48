"""The commands `firstpage align …`."""

import re
from pathlib import Path
from typing import Annotated

import typer

from firstpage._terminal import print_text
from firstpage.errors import UserError

align_app = typer.Typer(
    help="Make what images show lie in the same place in all of them.", no_args_is_help=True
)


@align_app.callback()
def _align() -> None:
    """Without a callback, typer would leave out the name of a single command."""


@align_app.command("faces")
def _faces(
    source: Annotated[Path, typer.Argument(help="Folder of images, such as that of LFW or CASIA-WebFace.")],
    target: Annotated[Path, typer.Argument(help="Folder for the aligned images.")],
    size: Annotated[str, typer.Option(metavar="HEIGHTxWIDTH", help="Size of aligned images.")] = "112x96",
    min_face: Annotated[int, typer.Option(help="Height of the smallest face to find, in pixels.")] = 60,
    jobs: Annotated[int | None, typer.Option(help="Processes. Defaults to one per core.")] = None,
    skip: Annotated[
        bool, typer.Option("--skip", help="Leave images without a face out; else their middle is cropped.")
    ] = False,
) -> None:
    """Align the face of every image by five landmarks. A stopped command goes on when it is run again."""
    from firstpage.data.face_alignment import align_faces

    if not (sides := re.fullmatch(r"(\d{1,5})[x×](\d{1,5})", size)):
        raise UserError(f"--size {size}: write height and width in pixels, such as 112x96")
    height, width = int(sides[1]), int(sides[2])
    found = align_faces(source, target, size=(height, width), min_face=min_face, jobs=jobs, skip=skip)
    print_text(found.text())
