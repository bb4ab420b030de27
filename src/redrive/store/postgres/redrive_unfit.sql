-- Unfit: members whose payload today's handler could not read stay where they are.
update redrive.redrive_item set state = 'ineligible', reason = 'payload no longer fits'
where redrive_id = :id::uuid and position = any(:positions::bigint[])
