"""The local page: requests, waterfalls, push beside pull, the comparison and the verdict. All figures come from
:mod:`stack.analysis`; the page only draws them.
"""
