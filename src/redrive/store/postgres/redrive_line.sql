-- Line: put the members of some lines in order. The function does it, for plans of older workers, too.
select redrive.line_up(:id::uuid, :after::text, :until::text)
