import os
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "python"))
os.environ["RUBATO_LIBRARY"] = str(pathlib.Path(os.environ["RUBATO_BUILD"]) / "lib" / "librubato_pytorch.so")
torch.set_num_threads(1)  # the models are tiny, and the cores are shared
