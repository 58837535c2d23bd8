"""Pipeline schedules as data: printed, checked, timed and drawn without a device and without torch.

``counts`` says which numbers of micro-batches a schedule takes, ``orders`` what each rank does in which order,
``check`` whether an order can run, ``clock`` how long it takes and what it keeps alive, ``draw`` shows it, and
``balance`` cuts the layers into stages. ``update/pipeline`` runs the same orders on torch.
"""
