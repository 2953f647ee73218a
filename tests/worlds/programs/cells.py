"""Runs the cells that it reads as JSON in a kernel, and prints what each of them printed as JSON: ``cells.py``."""

from __future__ import annotations

import json
import sys

import nbformat
from nbclient import NotebookClient

notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in json.load(sys.stdin)])
NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
print(json.dumps(["".join(each.get("text", "") for each in cell.outputs) for cell in notebook.cells]))
