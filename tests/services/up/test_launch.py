"""What a stage process is given: our settings from the file alone, its id, its socket."""

from headrace.up.launch import child_env


def test_settings_in_our_environment_cannot_override_the_file():
    environ = {"HEADRACE_UP__PORT": "1", "HEADRACE_MODELS_DIR": "/m", "PATH": "/bin", "HEADRACE_WID": "old"}

    env = child_env(environ, "decode-1", None)

    assert "HEADRACE_UP__PORT" not in env
    assert env["PATH"] == "/bin"
    assert env["HEADRACE_WID"] == "decode-1"
    assert env["PYTHONSAFEPATH"] == "1"
    assert "HEADRACE_LISTEN_FD" not in env


def test_ingress_is_told_its_socket():
    assert child_env({}, "ingress-1", 7)["HEADRACE_LISTEN_FD"] == "7"
