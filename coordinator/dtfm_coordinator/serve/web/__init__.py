"""The owner's page: the run in a browser, live, with what an owner may do about it; and its figures for Prometheus.

- `event_stream`: event stream of overviews to one viewer, who gets the newest one however slowly it reads
- `metrics_text`: figures of an overview in the text format of Prometheus
- `owner_actions`: actions that the page offers to who holds the owner's link, with answers in plain words
- `page_access`: access to the page: who may see it, and who may act, by links, hosts and origins
- `page_address`: address at which the page is served, as `serve --web` names it
- `page_app`: the page's requests and their answers
- `page_assets`: files of the page, read and compressed once
- `page_certificate`: certificate of the page, where it is served to other machines
- `page_links`: links that lead to the page: one to act, one to look, kept in the state folder
- `page_server`: server of the page: its socket, its bounds, and its end

The page itself, plain HTML, CSS and ES modules, is in the folder `assets`; nothing is loaded from elsewhere.
"""
