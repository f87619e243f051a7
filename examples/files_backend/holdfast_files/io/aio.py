"""The backend for asyncio: steps run on one worker thread, in the order in which they were requested."""

import asyncio
from collections.abc import Callable

from holdfast.backends.api import Address, Runtime, WorkerThread
from holdfast_files.io.blocking import FilesBackend, T


class AsyncFilesBackend(FilesBackend):
    """The same steps as with threads."""

    def __init__(self, address: Address, runtime: Runtime) -> None:
        super().__init__(address, runtime)
        self._worker = WorkerThread(self.url, "files")

    async def _call(self, attempt: Callable[[], T]) -> T:
        return await self._worker.run(asyncio.get_running_loop(), attempt)

    async def close(self) -> None:
        self._worker.stop()
        self._worker.join()


open_backend = AsyncFilesBackend
