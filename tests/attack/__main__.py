"""The long search, see the package."""

import argparse
import sys
from functools import partial

from rich.progress import Progress

from tests import attack as package
from tests.attack import PAGE, TARGETS, read, row, written
from tests.attack.climbing import TOLERANCE, Attack


def main() -> int:
    """Prints the table; status 1 if a bound is refuted."""
    parser = argparse.ArgumentParser(description=str(package.__doc__).splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="in all")
    parser.add_argument("--seed", type=int, default=0, help="of the random starts")
    parser.add_argument("--only", default="", help="targets whose name contains this")
    parser.add_argument("--write", action="store_true", help=f"the ratios into {PAGE.name}")
    options = parser.parse_args()
    targets = [target for name, target in TARGETS.items() if options.only in name]
    rows, refuted = read(PAGE.read_text("utf-8")), 0
    print(f"seed {options.seed}", flush=True)
    with Progress(transient=True) as progress:
        show = partial(progress.console.print, highlight=False, soft_wrap=True)
        task = progress.add_task("", total=len(targets))
        for target in targets:
            attack = Attack(target, options.seed)
            for best in attack.run(60.0 * options.minutes / len(targets)):
                progress.update(task, description=f"{target.name}: {best:.4f}")
            progress.advance(task)
            rows[target.name] = max(rows.get(target.name, row(attack)), row(attack))
            where = f" ({attack.summit})" if str(attack.summit) else ""
            show(f"{attack.best:8.4f}  {target.name}{where}")
            if attack.best > 1.0 + TOLERANCE:
                refuted += 1
                show(f"REFUTED by {attack.summit!r}")
    if options.write:
        PAGE.write_text(written(PAGE.read_text("utf-8"), rows), "utf-8")
    print(f"{refuted} of {len(targets)} bounds are REFUTED" if refuted else "all bounds are kept")
    return 1 if refuted else 0


if __name__ == "__main__":
    sys.exit(main())
