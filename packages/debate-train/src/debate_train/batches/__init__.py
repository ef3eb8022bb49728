"""From credits to rows of tokens: advantages of tokens, denominators and minibatches."""
