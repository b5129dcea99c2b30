# SPDX-License-Identifier: Apache-2.0
"""What benchmarks of the package for Python print."""


def print_medians(medians, peers, megabytes):
    """A line for each job: its time, its rate, and how much of its peer's time that is. peers: a job's name, or None."""
    for name, median in medians.items():
        beside = f"{median / medians[peers[name]]:6.2f} x {peers[name]}" if peers[name] else ""
        print(f"{name:36} {median * 1000:8.1f} ms  {megabytes / 1024 / median:6.2f} GiB/s  {beside}")
