"""From rows to what a reader sees: tables, the paper's rows beside ours, statements seen or not seen."""
