"""The pure core of the scheduler: reservations on nodes and permits of VMs (S4.5-S4.8, S4.10).

State: ``facts``, ``accounts``, ``moves``, ``state``. Rules: ``permit_rule``, ``effective_facts``, ``binding``,
``migration_reservations``, ``request_orders``, ``listing``. Interface: ``events``, ``outcomes``, ``ledger``.
"""
