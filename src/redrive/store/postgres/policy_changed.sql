-- Policy changed: raise the version, and keep others who change policies away until the end of the transaction.
update redrive.policy_version set version = version + 1
