"""Scenes of one's own as a source store: meshes with objects, and whatever trajectories and points come with them.

What a scene lacks is made as for synthetic homes: walks on free floor, sightings, and detections with noise.
"""
