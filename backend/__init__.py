"""Pivotscope's backend: everything behind the pages and the command line.

Data flows one way: problems → rollouts → pivots → passes → credit → report → pages.
"""
