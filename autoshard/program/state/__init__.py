"""What a step hands on to the next step: state that it returns, and state that it changes in place.

ties        inputs paired with the results that replace them
in_place    a step as a function that also returns what it changes in place
trained     which parameters a step trains, and which it only reads
write       arrays put in the place of those that a step has changed
"""
