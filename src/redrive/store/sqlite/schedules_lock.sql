-- Schedules lock: keep others from changing these until the end of the transaction; here that keeps everybody.
select value as name from json_each(:names)
