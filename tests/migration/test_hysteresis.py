from hybridkv.migration.hysteresis import latched


def test_switches_on_above_high_and_off_at_low() -> None:
    state, seen = False, []
    for value in (0.5, 0.85, 0.9, 0.91, 0.85, 0.81, 0.8, 0.85):
        state = latched(value, high=0.9, low=0.8, before=state)
        seen.append(state)
    assert seen == [False, False, False, True, True, True, False, False]


def test_a_high_mark_of_one_is_off() -> None:
    assert not latched(1.2, high=1.0, low=0.5, before=True)
