"""A headless Chromium that looks at the Dagster UI, and the UI itself as a real process."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from rollout_assets.defs.code_location import CAMPAIGNS_VARIABLE
from tests.support.waiting import PATIENCE_S

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1400,900",
)
SETTLE_S = 3.0


def find_browser() -> tuple[str, str] | None:
    """Chromium and its driver, if both are installed."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """Opens pages of one UI, waits for what they say, clicks on what they offer, and keeps pictures of them."""

    def __init__(self, driver: webdriver.Chrome, url: str, pictures: Path) -> None:
        self.driver, self.url, self.pictures = driver, url, pictures

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)

    def text(self) -> str:
        try:
            return self.driver.find_element(By.TAG_NAME, "body").text
        except WebDriverException:
            return ""

    def wait(self, *patterns: str, again: str | None = None) -> str:
        """The page's text once it matches every pattern; ``again`` is a path to open anew every few seconds."""
        end, opened = time.monotonic() + PATIENCE_S, time.monotonic()
        while time.monotonic() < end:
            text = self.text()
            if all(re.search(pattern, text) for pattern in patterns):
                return text
            if again is not None and time.monotonic() - opened > 10:
                self.open(again)
                opened = time.monotonic()
            time.sleep(0.5)
        self.picture("unexpected")
        raise AssertionError(f"{self.driver.current_url} never said {patterns}:\n{self.text()}")

    def click(self, label: str) -> None:
        """Click the button with this text, once it can be clicked."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                for button in reversed(self.driver.find_elements(By.TAG_NAME, "button")):
                    if button.text.startswith(label) and button.is_enabled():
                        button.click()
                        return
            except (StaleElementReferenceException, WebDriverException):
                pass
            time.sleep(0.5)
        self.picture("unexpected")
        raise AssertionError(f"{self.driver.current_url} has no button {label!r}:\n{self.text()}")

    def picture(self, name: str) -> None:
        """Keep a picture of the page, after a moment for what is drawn last."""
        time.sleep(SETTLE_S)
        self.pictures.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(self.pictures / f"{name}.png"))


@contextmanager
def browsing(url: str, profile: Path, pictures: Path) -> Iterator[Browser]:
    found = find_browser()
    assert found is not None
    options = webdriver.ChromeOptions()
    options.binary_location = found[0]
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(found[1]))
    try:
        yield Browser(driver, url, pictures)
    finally:
        driver.quit()


@contextmanager
def running_ui(home: Path, campaign: Path) -> Iterator[str]:
    """`rollout-assets ui` in a session of its own; yields its address and ends all of it."""
    with started_ui(home, campaign) as ui:
        yield ui.url


@dataclass(frozen=True)
class Ui:
    """A running UI with its daemon and code server, which all belong to the group of one process."""

    url: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End all of it at once, as when a machine is switched off."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """The answer to a GraphQL query, as the pages of the UI get it."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            answer: dict[str, Any] = json.load(reply)
        assert "errors" not in answer, answer["errors"]
        data: dict[str, Any] = answer["data"]
        return data


@contextmanager
def started_ui(home: Path, campaign: Path) -> Iterator[Ui]:
    """The same, with its process and its answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    start = "from rollout_assets.cli import main; main()"
    command = [sys.executable, "-c", start, "ui", "--campaign", str(campaign), "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if name != CAMPAIGNS_VARIABLE}
    log = home.parent / "ui.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=home.parent,
            env=environment | {"DAGSTER_HOME": str(home)},
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        _await_ui(url, process, log)
        yield Ui(url, process)
    finally:
        _end(process)


def _await_ui(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/server_info", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"the UI did not start:\n{log.read_text()[-4000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            continue
