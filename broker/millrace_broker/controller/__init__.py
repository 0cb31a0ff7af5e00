"""The controller: one broker that decides who has and who leads which partition."""
