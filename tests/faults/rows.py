"""Rows of the fault log whose right outcome a test of some other room holds: row → tests, or why there is none.

A row with a trigger of its own has its number in the name of its test (``test_open_rows*.py``, ``test_rows_keep.py``).
These are the rows of recovery, running and environment, where the test came first.
"""

from __future__ import annotations

ROWS: dict[str, tuple[str, ...]] = {
    "B075": ("tests/flow/test_resume.py::test_stopped_and_resumed_twice_in_one_epoch",),
    "B084": ("tests/drills/test_rules.py::test_b084_a_run_that_skips_every_step_is_stopped",),
    "B088": (
        "tests/faults/test_launched_ranks.py::test_an_exception_is_the_cause_and_not_the_peers_that_lost_it",
        "tests/drills/test_processes.py::test_an_exception_on_one_rank_is_told_once_and_as_the_cause",
    ),
    "B093": (
        "tests/drills/test_storage.py::test_another_number_of_ranks_goes_on_with_the_same_samples",
        "tests/flow/test_pairs.py::test_the_straight_run_is_where_it_ends",
    ),
    "B095": ("tests/flow/test_resume.py::test_another_layout_goes_on_with_the_same_samples",),
    "B096": (
        "tests/recover/test_save.py::test_parts_of_a_killed_save_never_mix_with_the_next",
        "tests/recover/test_save.py::test_a_rank_killed_in_a_save_leaves_nothing_that_is_read",
    ),
    "B098": ("tests/recover/test_checkpoint.py::test_an_empty_folder_with_a_step_name_is_not_a_checkpoint",),
    "B101": ("tests/recover/test_save.py::test_hosts_with_disks_of_their_own_are_told_so",),
    "B102": ("tests/recover/test_save.py::test_retention_counts_numbers_and_not_letters",),
    "B104": (
        "tests/recover/test_save.py::test_another_runs_steps_are_neither_deleted_nor_resumed_nor_replaced",
    ),
    "B105": (
        "tests/recover/test_save.py::test_a_full_disk",
        "tests/drills/test_storage.py::test_a_disk_that_fills_up_in_a_run_ends_it_with_its_reason_and_its_last_save",
    ),
    "B107": (
        "tests/drills/test_storage.py::test_a_save_that_fails_behind_training_ends_it_at_the_next_step",
        "tests/recover/test_background.py::test_a_save_that_fails_is_told_by_the_next_call",
    ),
    "B108": ("tests/recover/test_background.py::test_peers_whose_store_is_another_do_not_wait_for_ever",),
    "B112": ("tests/drills/test_communication.py::test_the_inner_time_out_is_always_the_shorter_one",),
    "B117": ("tests/launch/test_environment.py::test_one_process_is_no_world",),
    "B123": ("tests/job/test_load.py::test_errors_name_key_line_and_repair",),
    "B125": (
        "tests/launch/test_machine.py::test_windows_is_refused",
        "tests/launch/test_machine.py::test_the_command_line_refuses_windows_in_its_first_line",
    ),
    "B131": ("tests/drills/test_processes.py::test_a_rank_that_dies_in_a_step_costs_its_step_and_no_bit",),
    "B144": ("tests/recover/test_checkpoint.py::test_no_pickle_is_ever_read",),
}

NOT_YET: dict[str, str] = {
    "B082": "no average of the weights is kept, so there is no best score of it",
    "B083": "no average of the weights is kept",
    "B089": "the rank is named (test_a_rank_that_does_not_come_is_named); the seconds that it takes are not asserted",
    "B114": "no coordinator has a port: several hosts are to come",
    "B116": "counts of tasks by host are not read: starting under SLURM is to come (several processes are refused)",
    "B119": "no name is resolved: several hosts are to come",
    "B121": "no address is resolved: several hosts are to come",
    "B127": "launchers of other systems are to come",
    "B129": "federation is to come",
    "B130": "federation is to come",
    "B145": "federation is to come",
}
