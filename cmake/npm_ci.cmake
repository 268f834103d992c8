# npm_ci(NODE NPM FOLDER OUT_ERROR): installs the packages of FOLDER's lock file there, unless they are
# installed already (same lock file, npm settings and node). OUT_ERROR: empty, or what npm said.
#
# As a script it makes a test suite ready: copies SOURCE to FOLDER and installs its packages there.
#   cmake -D NODE= -D NPM= -D SOURCE= -D FOLDER= -P npm_ci.cmake
cmake_minimum_required(VERSION 3.25)

function(npm_ci node npm folder out_error)
    execute_process(COMMAND ${node} --version OUTPUT_VARIABLE node_version OUTPUT_STRIP_TRAILING_WHITESPACE)
    file(SHA256 ${folder}/package-lock.json lock_hash)
    file(SHA256 ${folder}/.npmrc npmrc_hash)
    set(stamp "${lock_hash} ${npmrc_hash} ${node_version}")
    set(stamp_file ${folder}/node_modules/.stamp)
    set(${out_error} "" PARENT_SCOPE)
    if(EXISTS ${stamp_file})
        file(READ ${stamp_file} old)
        if(old STREQUAL stamp)
            return()
        endif()
    endif()
    execute_process(
        COMMAND ${npm} ci --loglevel=error --fetch-retries=2 --fetch-retry-mintimeout=1000
            --fetch-retry-maxtimeout=5000
        WORKING_DIRECTORY ${folder} RESULT_VARIABLE result OUTPUT_VARIABLE log ERROR_VARIABLE log)
    if(NOT result EQUAL 0)
        set(${out_error} "npm ci failed: ${result}\n${log}" PARENT_SCOPE)
        return()
    endif()
    file(WRITE ${stamp_file} "${stamp}")
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
    if(NOT NODE OR NOT NPM)
        message(FATAL_ERROR "node and npm are needed for the tests in ${SOURCE} (apt-get install nodejs npm)")
    endif()
    file(GLOB inputs ${SOURCE}/*.json ${SOURCE}/*.mjs ${SOURCE}/.npmrc)
    file(COPY ${inputs} DESTINATION ${FOLDER})
    npm_ci(${NODE} ${NPM} ${FOLDER} error)
    if(error)
        message(FATAL_ERROR "packages of ${SOURCE}: ${error}")
    endif()
endif()
