"""What a view is worth: the simulator that knows the true mesh, as exact device kernels with slow twins beside them.

Poses become depth (``raycast``), depth becomes points that open new voxels (``fusion``), points change the error of a
surface (``surface_error``), and the change is the label (``scorer``). ``scene`` keeps meshes on a device, ``naive``
says the same slowly, ``benchmark`` measures both.
"""
