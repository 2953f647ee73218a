"""Requests for a session that another node holds: forwarded to that node, and answered with its answer.

A listener of a server whose session directory spans processes has a mailbox. A request that names a session which the
listener does not hold is looked up in the directory, and sent to the mailbox of the listener that does; the answer
comes back to the mailbox of the listener that was asked. `messages` has the messages, `outbound_request` the side that
forwards, `inbound_request` the side that holds the session, and `forwarder` what both have in common.
"""
