"""From the tokens of a choice to the text of its deltas: detokenizer, stop strings and the choice of the best."""
