"""Includes all modules of nbshare, because most are imported only on first use."""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules

hiddenimports = collect_submodules("nbshare")
datas = collect_data_files("nbshare")
