"""What measured runs say about the planner's closed forms, and how sure a prediction is after them.

A step's predicted seconds are moved by one multiplier for each kind of work (``speed/rates.py``). Runs on other
hardware, by other programs, of other models share some of those multipliers: one covariance says how much
(``covariance.py``), and a Gaussian process over it gives the prediction and its interval (``posterior.py``).
"""
