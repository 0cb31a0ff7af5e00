"""The topology of the kill test.

A stateful join and an aggregate each follow a repartition.
"""

from millrace_streams import StreamsBuilder, Topology


def topology() -> Topology:
    """Repartition orders by customer, join them with the customers' regions, and sum the amounts of each region."""
    builder = StreamsBuilder()
    customers = builder.table("customers", key="string", value="string", store="customers")
    orders = builder.stream("orders", key="string", value="json")
    by_customer = orders.map(lambda key, order: (order["customer"], {"order": key, **order}))
    lines = by_customer.left_join(customers, lambda order, region: {**order, "region": region})
    lines.to("lines")
    lines.to_delta("lines")
    amounts = lines.map(lambda key, line: (line["region"], line["amount"]), value="long")
    amounts.group_by_key().reduce(lambda total, amount: total + amount, store="totals").to_delta("totals")
    return builder.build()
