"""The contract of every `Builder`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import Builder
from gnomon_platforms.local.builder import EnvironmentBuilder
from tests.refusals import refused

MakeArchive = Callable[..., Path]


class BuilderContract(ABC):
    """Inherit and say how one is made."""

    @pytest.fixture
    @abstractmethod
    def builder(self, tmp_path: Path) -> Builder: ...

    async def test_the_same_content_gives_the_same_id(self, builder: Builder, build_archive_file: MakeArchive) -> None:
        first = await builder.build(build_archive_file(), lambda _: None)
        again = await builder.build(build_archive_file(), lambda _: None)
        assert first == again

    async def test_another_content_gives_another_id_for_the_same_image(
        self, builder: Builder, build_archive_file: MakeArchive
    ) -> None:
        first = await builder.build(build_archive_file(), lambda _: None)
        other = await builder.build(build_archive_file("def handle(event, context): return 'other'\n"), lambda _: None)
        assert first.image == other.image
        assert first.content_id != other.content_id

    async def test_the_name_has_the_tag_that_a_deployment_sends(self, builder: Builder, build_archive_file: MakeArchive) -> None:
        assert (await builder.build(build_archive_file(image="localhost:5000/ada/echo"), lambda _: None)).image.endswith(
            "/ada/echo:latest"
        )

    async def test_builder_describes_itself(self, builder: Builder, build_archive_file: MakeArchive) -> None:
        lines: list[str] = []
        await builder.build(build_archive_file(), lines.append)
        assert lines
        assert all(line and "\n" not in line for line in lines)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"handler": "def handle(:\n"}, "line 1"),
            ({"language": "golang-http"}, "golang-http"),
            ({"language": None, "files": {"context/Dockerfile": "FROM scratch\n"}}, "python3-http"),
            ({"requirements": "-r other.txt\n"}, "-r other.txt"),
            ({"requirements": "../outside\n"}, "../outside"),
            ({"requirements": "x @ file:///etc/passwd\n"}, "file:///etc/passwd"),
        ],
    )
    async def test_failed_build_answers_422_with_the_reason(
        self, builder: Builder, build_archive_file: MakeArchive, options: dict[str, str], says: str
    ) -> None:
        with pytest.raises(GnomonError) as caught:
            await builder.build(build_archive_file(**options), lambda _: None)
        assert caught.value.status == 422
        assert says in str(caught.value)

    async def test_an_archive_without_a_configuration_is_refused(self, builder: Builder, tmp_path: Path) -> None:
        (tmp_path / "empty.tar").write_bytes(bytes(1024))
        with refused(422):
            await builder.build(tmp_path / "empty.tar", lambda _: None)


class TestEnvironmentBuilder(BuilderContract):
    @pytest.fixture
    def builder(self, tmp_path: Path) -> Builder:
        return EnvironmentBuilder(tmp_path / "built")
