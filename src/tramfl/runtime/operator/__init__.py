"""The operator's end of a federation. Each command imports the one part it needs:

founding     a new federation on disk; certifying: its certificates; preflight: what keeps a site from taking part
operating    asks the sites for their status (federation_status), gives orders, fetches rows and the model;
             watching: for the live view
collecting   a run's model and record into a folder; local, ports and trial: sites as processes here, and one run
"""
