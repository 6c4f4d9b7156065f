"""What a trained model says: likelihoods of tasks, and rolling out."""
