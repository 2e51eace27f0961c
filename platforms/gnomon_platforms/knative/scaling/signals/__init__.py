"""What is measured: pods tell what they have seen in the last second, activators how many requests wait at them.

stat       the document of queue-proxy
waiting    the page of an activator
load       both, over time ▶ the counters that any policy decides by
scraper    asks them, again and again
"""
