#!/bin/sh
# job.sh LOG ARGUMENTS: run `holdfast run ARGUMENTS`, with its output in ~/log/LOG.
#
# cron sends its owner a mail with the output of a command. So this prints nothing after a success and after a run that
# was skipped, and one line otherwise.

log="$HOME/log/$1"
shift
mkdir -p "$HOME/log"
holdfast run --verbose "$@" >>"$log" 2>&1
status=$?
case $status in
    0) exit 0 ;;
    121) problem="an earlier run of this key was interrupted or failed, so the job has not run" ;;
    123) problem="the lock was lost while the job ran, and the job was ended" ;;
    124) problem="the lock was not acquired in time: another run still works" ;;
    125) problem="the store of the locks is not available, so the job has not run" ;;
    *) problem="the job failed with status $status" ;;
esac
echo "$(hostname): $problem; see $log"
exit $status
