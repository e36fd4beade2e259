"""All that is behind the public names."""

import os

PACKAGE = os.path.dirname(os.path.dirname(__file__))  # the folder of nbshare
