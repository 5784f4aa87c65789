"""Dask clusters to run tests on, and the comparison of results byte by byte."""


def make_cluster(workers, processes=True, **options):
    """A cluster that starts killed workers again, however long that takes on a busy machine."""
    import dask
    import distributed

    dask.config.set({"distributed.deploy.lost-worker-timeout": "600s"})
    return distributed.LocalCluster(
        n_workers=workers,
        processes=processes,
        threads_per_worker=1,
        dashboard_address=":0",
        silence_logs=50,
        **options,
    )


def same_bytes(one, other):
    """Whether two results have the same metrics, to the last bit."""
    return one.samples.tobytes() + one.features.tobytes() == (
        other.samples.tobytes() + other.features.tobytes()
    )
