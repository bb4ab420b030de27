-- Unfit: members whose payload today's handler could not read stay where they are.
update redrive_redrive_item set state = 'ineligible', reason = 'payload no longer fits'
where redrive_id = :id and position in (select value from json_each(:positions))
