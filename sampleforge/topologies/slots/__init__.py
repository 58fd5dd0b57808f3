"""The topology of APPO and PQN: slots that actors fill and learners empty; plan and wiring."""
