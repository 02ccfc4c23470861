"""Training programs that know nothing of Stretto: what data workers could prepare of their steps, and do."""
