// A target is made of sources; this one is there for the precompiled header alone.
