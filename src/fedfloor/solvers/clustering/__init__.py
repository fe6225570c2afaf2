"""Which devices are alike, and which are far apart: hashes, K-Means and K-Center, as FLDG and FAVOR use them."""
