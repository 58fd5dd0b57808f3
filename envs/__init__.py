"""The bundled environment families, one file each, installed as `sampleforge_envs` and found
through the entry-point group `sampleforge.envs`."""
