async def test_smoke(door):
    answer = await door.chat()
    print(answer.status, answer.headers, answer.raw)
    answer = await door.chat(stream=True, stream_options={"include_usage": True})
    print(answer.status, answer.headers, answer.raw.decode())
    assert 0
