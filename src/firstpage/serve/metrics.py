"""What the server did, in Prometheus' text format."""

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds


class Metrics:
    """Requests, errors and a histogram of latencies, by route.

    >>> metrics = Metrics()
    >>> metrics.observe("/api/search", "POST", 200, 0.02)
    >>> print(metrics.text({'firstpage_index_images{index="birds"}': 7}).splitlines()[-1])
    firstpage_index_images{index="birds"} 7
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS) + 1))
        self._seconds: Counter[str] = Counter()

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request.

        Args:
            route: The pattern of its path, of which there are few.
            method: Its method.
            status: Of the answer.
            seconds: Until the answer was complete.
        """
        with self._lock:
            self._requests[route, method, status] += 1
            self._buckets[route][bisect_left(BOUNDS, seconds)] += 1
            self._seconds[route] += seconds  # type: ignore[assignment]

    def text(self, gauges: Mapping[str, float]) -> str:
        """Return all counts, and further values by name, in Prometheus' text format."""
        lines = ["# TYPE firstpage_requests_total counter"]
        errors: Counter[str] = Counter()
        with self._lock:
            for (route, method, status), count in sorted(self._requests.items()):
                labels = f'route="{route}",method="{method}",status="{status}"'
                lines.append(f"firstpage_requests_total{{{labels}}} {count}")
                errors[route] += count if status >= 500 else 0
            lines.append("# TYPE firstpage_errors_total counter")
            lines += [
                f'firstpage_errors_total{{route="{route}"}} {errors[route]}' for route in sorted(errors)
            ]
            lines.append("# TYPE firstpage_request_seconds histogram")
            for route, buckets in sorted(self._buckets.items()):
                total = 0
                for bound, count in zip((*BOUNDS, "+Inf"), buckets, strict=True):
                    total += count
                    lines.append(f'firstpage_request_seconds_bucket{{route="{route}",le="{bound}"}} {total}')
                lines.append(f'firstpage_request_seconds_sum{{route="{route}"}} {self._seconds[route]:.6f}')
                lines.append(f'firstpage_request_seconds_count{{route="{route}"}} {total}')
        kinds = dict.fromkeys(name.partition("{")[0] for name in gauges)
        for kind in kinds:
            lines.append(f"# TYPE {kind} gauge")
            lines += [f"{name} {value:g}" for name, value in gauges.items() if name.partition("{")[0] == kind]
        return "\n".join(lines) + "\n"
