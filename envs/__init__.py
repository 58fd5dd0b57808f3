"""The bundled environment families, one module each, installed as `sampleforge_envs` and registered
in the entry-point group `sampleforge.envs`."""
