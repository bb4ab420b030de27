"""Hostile: what nobody should write into a field, and what somebody will."""

from __future__ import annotations

TEXTS = (
    "", " ", "0", "1", "-1", "00", "0x10", "1e309", "9" * 19, "9" * 30, "9" * 5_000, "٣", "²", "NaN", "Infinity",
    "null",
    "true", "a\0b", "\0", "\x1b[31m\x1b]0;owned\x07", "\x9b2J", "\u202e", "é", "e\u0301", "\U0001f600", "\ufffd",
    "\ufeff",
    "\n", "a\r\nb: c", "'", '"', "'; drop table redrive_outbox; --", '" or 1=1 --', "$1", ":now", "?", "%s", "%00",
    "{0}",
    "{{40+9}}", "<script>alert(1)</script>", "../../etc/passwd", "\\", "*", "**", "a*b*c", "[red]x[/red]", "x" * 300,
    "x" * 5_000, "é" * 3_000, "01", "0190", "01900000-0000-7000-8000-000000000000", "{0190}", "urn:uuid:0190", "---",
    "1h", "-1h", "1.5h", "1e9d", "0s", "99999999999d", "inf", "1h1h", "2030-01-01T00:00:00Z", "2030-02-31",
    "0001-01-01",
    "9999-12-31T23:59:59+14:00", "10/s", "0/s", "1/0s", "10%", "101%", "1,5,25", "1,,2", "none", "full", "@", "-", "--",
    "=", "a=b", "payload.a=1", "payload[0]", "payload..a", "payload." + "a." * 100, "*/5 * * * *", "61 * * * *",
    "Europe/Vienna", "Mars/Base", "operator", "agent:x", "http://[", "sqlite:///", "json:loads",
)  # fmt: skip
"""Any of these may stand in any field."""

SELECTIONS = (
    "type:order.bad", "type:order.*", "status:failed", "status:no", "class:missing", "text:", 'text:"', "text:\\",
    "a:b",
    "age>1h", "age>", "age<-1h", "age>9999999999999d", "created>2030-01-01", "created>0001-01-01T00:00:00-23:59",
    "created<9999-12-31T23:59:59-14:00", "failed-at>2030", "attempts>99999999999999999999", "attempts:-1", "id:0190",
    "id:zz", "id:*", "payload.id:1", "payload.lines[0].sku:lamp", "payload.id>1e400", "payload.id:1e400",
    "payload.a" + ".b" * 70 + ":1", "payload:1", 'payload."a\'b":1', "header.lane:7", "header:7", "group:1", "group:*",
    "discarded:yes", "-discarded:yes", "--type:a", "type:a,b,c", "type:" + ",".join("abcdefghij" * 20), "priority:high",
    "priority:9", "safe:maybe", "batch:0190", "site:a", "corr:basket-7", "due<1h", "due-at:2030-01-01", "lost:1",
    "generation>=9223372036854775808", "type:\u0130", "text:\u0130", "idem:%", "key:_", "retry-key:'", "(type:a)",
    "type:a or type:b", "type:a type:b", "not type:a", "*", '""', "type:\0", "type:\\u0000", "payload.id:NaN",
)  # fmt: skip
"""What is said where a selection is wanted."""
