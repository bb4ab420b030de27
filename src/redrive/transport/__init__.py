"""Transports: from events to a broker's messages, and back.

base       the words: a message, a broker, a subscription
envelope   an event as a message: CloudEvents 1.0
relay      out: a handler whose work is to send
intake     in: stored first, acknowledged then
traffic    what an app has of both, and how it goes
kafka      Kafka
nats       NATS JetStream
"""
