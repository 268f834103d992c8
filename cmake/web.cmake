# The web page. web/ is built by npm in the build folder and embedded in the program as the table of
# srv/web.h. Without node, or when its packages cannot be fetched, web/fallback.html is embedded
# instead and a message says so; the server itself never needs node.

set(HADAL_WEB_SOURCE "")
if(HADAL_WEB)
    find_program(HADAL_NODE NAMES node nodejs)
    find_program(HADAL_NPM NAMES npm)
    if(HADAL_NODE AND HADAL_NPM)
        set(HADAL_WEB_SOURCE ${CMAKE_SOURCE_DIR}/web)
    else()
        message(WARNING "web page: node and npm are not installed, so the server gets its plain page "
            "(on Debian: apt-get install nodejs npm, then configure again)")
    endif()
endif()

set(HADAL_WEB_TABLE ${CMAKE_BINARY_DIR}/gen/web_assets.c)
set(HADAL_WEB_BUILD ${CMAKE_BINARY_DIR}/web)
# A page that could not be built is tried again by the build after the next configure.
if(EXISTS ${HADAL_WEB_BUILD}/failed)
    file(REMOVE ${HADAL_WEB_TABLE})
endif()

file(GLOB HADAL_WEB_INPUTS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/web/src/*
    ${CMAKE_SOURCE_DIR}/web/test/* ${CMAKE_SOURCE_DIR}/web/*.* ${CMAKE_SOURCE_DIR}/web/.npmrc)
add_custom_command(
    OUTPUT ${HADAL_WEB_TABLE}
    COMMAND ${CMAKE_COMMAND}
        -D NODE=${HADAL_NODE} -D NPM=${HADAL_NPM} -D SOURCE=${HADAL_WEB_SOURCE}
        -D FALLBACK=${CMAKE_SOURCE_DIR}/web/fallback.html
        -D BUILD=${HADAL_WEB_BUILD} -D TABLE=${HADAL_WEB_TABLE}
        -P ${CMAKE_SOURCE_DIR}/cmake/web_build.cmake
    DEPENDS ${HADAL_WEB_INPUTS} cmake/web_build.cmake cmake/npm_ci.cmake
    COMMENT "Web page"
    VERBATIM)

add_library(hadal_web STATIC ${HADAL_WEB_TABLE})
target_link_libraries(hadal_web PRIVATE hadal_flags)
