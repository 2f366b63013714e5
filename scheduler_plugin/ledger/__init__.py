"""The pure heart of the scheduler: who has reserved what, and what each VM may use (S4.5-S4.8, S4.10).

State: ``facts``, ``accounts``, ``moves``, ``state``. Rules over it: ``permit_rule``, ``believed``, ``binding``,
``migration_reservations``, ``request_orders``, ``listing``. The door: ``events``, ``outcomes``, ``ledger``.
"""
