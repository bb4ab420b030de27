-- Clock leaps: when the file's clock went forward while nobody saw time pass, the latest first.
select since, until from redrive_clock_leap order by until desc
