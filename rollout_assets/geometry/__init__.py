"""Array math without domain words: poses, oriented boxes, pinhole cameras, voxels.

Functions take and return NumPy arrays with any number of leading dimensions, float32 outside and float64 inside.
World frames are metres with +Z up. Camera frames are LUF: the columns of a rotation are left, up and forward.
"""
