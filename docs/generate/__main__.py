"""The command `python -m docs.generate`: writes the reference anew, and says which pages have changed."""

from docs.generate.pages import FOLDER, PAGES


def main() -> None:
    """Write each page whose text is another one now."""
    for name, text in PAGES.items():
        path = FOLDER / name
        page = text()
        if not path.exists() or path.read_text(encoding="utf-8") != page:
            path.write_text(page, encoding="utf-8")
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
