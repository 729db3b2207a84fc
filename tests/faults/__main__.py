"""`python -m tests.faults`."""

import sys

from tests.faults.harness import main

sys.exit(main())
